"""The REST API of ``cdc serve``: ``build_app`` returns the ASGI application, ``Tokens`` are its secrets."""

from cdc.manager.rest.app import build_app
from cdc.manager.rest.guard import Tokens

__all__ = ["Tokens", "build_app"]

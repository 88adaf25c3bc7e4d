"""The manager of a host: ``cdc serve``, its REST API and its web page."""

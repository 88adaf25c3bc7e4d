"""A module whose import makes the code of this process look older than the installed one."""

from cdc.job import fork

fork.installed_version = lambda: "of the next version"

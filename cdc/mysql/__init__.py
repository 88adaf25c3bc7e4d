"""MySQL and MariaDB: connections, catalog, character sets, DDL and values, for every source."""

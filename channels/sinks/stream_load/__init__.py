"""What Doris and StarRocks share: Stream Load over HTTP, SQL frontends, column types."""

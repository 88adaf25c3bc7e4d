"""The Apache Doris sink."""

"""The StarRocks sink."""

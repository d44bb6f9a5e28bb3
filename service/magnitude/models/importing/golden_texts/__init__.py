"""Short texts of several kinds, written for this project, over which graphs are compared and KV scales found."""

"""From the structs of a failed launch to an exception with names, lines and a remedy."""

"""Lakes as targets: all that Delta Lake and Iceberg share. The formats' engines rest on it."""

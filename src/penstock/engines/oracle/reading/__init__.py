"""Reading tables of an Oracle database: which there are, their definitions, and their rows."""

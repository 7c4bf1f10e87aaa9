"""Reading of SQL Server's tables: catalogue, definitions, chunks and rows."""

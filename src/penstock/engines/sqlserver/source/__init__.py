"""Reading of SQL Server's change tables, and their merge into transactions of the log."""

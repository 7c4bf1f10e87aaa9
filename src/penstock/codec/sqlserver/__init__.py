"""SQL Server as bytes, texts and Arrow arrays: no input or output here."""

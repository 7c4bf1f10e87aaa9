"""`penstock table`: requests for single tables, and the tables that a pipeline follows."""

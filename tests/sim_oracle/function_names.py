"""Names of the functions that sqlglot would translate into others: they get the prefix ORA_."""

from __future__ import annotations

NAMES = (
    *("TO_CHAR", "TO_NUMBER", "REGEXP_LIKE", "HEXTORAW", "RAWTOHEX", "CHARTOROWID", "ROWIDTOCHAR"),
    *("TO_DATE", "TO_TIMESTAMP", "TO_TIMESTAMP_TZ", "FROM_TZ", "LENGTH", "LENGTHB", "SUBSTR"),
    *("INSTR", "NVL", "NVL2", "DECODE", "GREATEST", "LEAST", "TRUNC", "ROUND", "MOD", "LPAD"),
    *("RPAD", "BITAND", "STANDARD_HASH", "ORA_HASH", "EMPTY_CLOB", "EMPTY_BLOB", "TO_CLOB"),
    *("TO_NCLOB", "TO_BLOB", "TO_BINARY_DOUBLE", "TO_BINARY_FLOAT", "NUMTODSINTERVAL"),
    *("NUMTOYMINTERVAL", "TO_DSINTERVAL", "TO_YMINTERVAL", "SYS_EXTRACT_UTC", "SYS_GUID", "CHR"),
    *("UNISTR", "CEIL", "FLOOR", "LOWER", "UPPER", "TRIM", "RTRIM", "LTRIM", "REPLACE", "ABS"),
    *("SIGN", "ADD_MONTHS", "NULLIF", "CONCAT", "NANVL"),
)

"""Parts that the certifications of all engines share: cases, assumptions, suites, the report.

Not here: what a server is, its cases, its soak (`certify_sqlserver`, `certify_oracle`).
"""

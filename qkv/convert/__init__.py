"""Import and export of other formats: strict tables, validated files."""

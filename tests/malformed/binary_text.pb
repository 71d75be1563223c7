format_version: 1
graph {}

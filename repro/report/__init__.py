"""Pages and pictures of tables: the report of an experiment (`page`), and a comparison of finished cells."""

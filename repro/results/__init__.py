"""What finished cells say: records for tables, their small files, and estimates of hours. Above the plan and the store."""

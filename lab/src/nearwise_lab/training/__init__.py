"""Training code of the lab beyond the library's: settings, schedules, averages, losses."""

"""What the lab's trainings do beside the library's: settings, rates, averages, terms of a loss."""

"""What an engineer runs beside the library."""

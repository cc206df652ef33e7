"""What the endpoints take and show."""

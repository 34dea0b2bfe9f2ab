"""What a trainer decides, by subject."""

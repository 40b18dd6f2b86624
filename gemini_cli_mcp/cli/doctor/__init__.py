"""What must be true for a search to work, and the fix for each thing that is not."""

"""What both HTTP servers share: listening, access, logs, metrics."""

"""What users and deployments configure."""

"""What differs between Linux, macOS and Windows, apart from child processes (see process/)."""

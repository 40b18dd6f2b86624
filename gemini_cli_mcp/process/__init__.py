"""Child processes and their cleanup. Independent of gemini."""

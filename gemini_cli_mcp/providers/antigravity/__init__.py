"""The provider `antigravity`: the official agy CLI."""

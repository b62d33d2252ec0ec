"""What SQL destinations share; a dialect is all that one adds."""

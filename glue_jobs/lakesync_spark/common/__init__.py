"""What every job uses: arguments, the session, staged batches, folding, threads and the report."""

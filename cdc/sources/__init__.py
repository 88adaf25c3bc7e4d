"""Sources: receivers that read changes and deliver them as Batches. Contract: ``base``. One folder per source."""

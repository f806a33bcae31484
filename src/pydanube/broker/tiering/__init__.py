"""Object storage as the broker manages it: uploads, garbage collection, administration, disaster recovery."""

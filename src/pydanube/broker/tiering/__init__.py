"""History in object storage as the broker manages it: uploads, garbage, administration, disaster recovery."""

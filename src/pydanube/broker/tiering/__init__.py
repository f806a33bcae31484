"""Object storage as the broker manages it: uploads, garbage collection, administration, disaster recovery.

object_storage          runs the rounds: upload, trim the log, merge, write manifests, collect garbage
tiered_partition        one open partition, as the uploader and the merger use it
administration          the requests of administrators
disaster_recovery       rebuilds the metadata of a lost broker from its object store

`core.tiering` decides what is uploaded, and `storage.segments` reads and writes the objects.
"""

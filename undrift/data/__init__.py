"""Data and how they are spread over clients.

registry      Data, load("mnist"), @dataset("name")
datasets/     the readers
store         finding, checking and downloading their files
tables        from_table: your own data with named columns
transforms    from stored samples to model inputs, random crops and flips
partitions    which client holds which sample, @partition("name")
"""

"""Image data sets: the registered ones, folders of class folders, and data sets of the hub."""

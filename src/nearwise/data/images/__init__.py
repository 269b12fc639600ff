"""Image data sets: registered ones, folders of class folders, and data sets of the hub."""

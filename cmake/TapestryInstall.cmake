# The installed package; filled by the layers.

"""Work on the files of a store without its broker: check, repair, back up, restore."""

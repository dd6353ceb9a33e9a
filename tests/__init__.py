"""The tests of duly; a package, so that no installed package named `tests` hides this one."""

"""Values that the library returned, as commands show them."""

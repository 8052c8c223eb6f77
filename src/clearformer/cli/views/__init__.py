"""What commands show of values that the library returned."""

"""Series: names, points and rows that every format is read into."""

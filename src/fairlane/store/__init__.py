"""Facts: what is durable, behind one small driver per database. Nothing is decided here."""

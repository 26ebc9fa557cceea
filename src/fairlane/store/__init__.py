"""Durable facts, behind one small driver per database. Nothing is decided here."""

"""The suite for engines, by topic; `suite` has all of it."""

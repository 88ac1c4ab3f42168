"""Configuration, names, selection and life cycle; imports no framework."""

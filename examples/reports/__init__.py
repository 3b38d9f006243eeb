"""Public reports of other projects' users, played against simulated providers: no key is needed."""

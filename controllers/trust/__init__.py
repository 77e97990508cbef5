"""Trust: is the proposal to be believed?"""

"""The console: the broker in a browser.

Lives here: a process of its own that makes pages on the server (Starlette, Jinja2) from what the REST API answers.
May import: runtime, model.
Flows through: requests of browsers in; requests to REST out, with the credentials of the person who signed in.
Never: a decision about who may do what (the broker decides), another way to a broker, a file from the internet.

    server       `run`: listens and ends in order
    application  routes, and what every answer has: the security headers, the session, the form token
    sessions     who is signed in
    rest         asks REST, by whichever address answers
    view         one page that is being made: parts that fail show why, and the others stay
    pages        the pages, by subject; messages is the message browser
    words        how numbers, times and payloads are shown
    acts         what changes something: says what it will do, asks for the name, and does it
"""

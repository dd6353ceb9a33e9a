"""The URLs of the project: Django's admin, and duly's dashboard."""

from django.contrib import admin
from django.urls import path

from duly.integrations.django.dashboard import dashboard_urls

urlpatterns = [path("admin/", admin.site.urls), path("duly/", dashboard_urls())]
